"""Tools for developers of lifecycle: measurements of the code, the release. They are not shipped."""
