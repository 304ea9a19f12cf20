"""Developer tools for lifecycle: code measurements and the release. They are not part of the package."""
