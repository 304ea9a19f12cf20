"""What developers of lifecycle run: measurements of the code, the release. Nothing here is shipped."""
