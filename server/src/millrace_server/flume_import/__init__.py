"""Flume's configurations as Millrace's: what there is a counterpart for, and a sentence for all else."""
