"""Whether the ranks of a job run the programs that were proved: they compare what each of them captured."""
