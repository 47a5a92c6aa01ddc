"""Documents the provenance of a bundle: the SBOM of its libraries, and its signature. Nothing here imports torch."""
