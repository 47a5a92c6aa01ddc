"""The noun of the pipeline: a captured program, and the original model that it must agree with."""
