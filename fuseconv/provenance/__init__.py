"""Documents where a bundle comes from: the SBOM of its libraries, and its signature. Nothing here imports torch."""
