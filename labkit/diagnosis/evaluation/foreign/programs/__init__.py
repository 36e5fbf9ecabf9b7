"""The base programs: ordinary training loops on data that is generated from a seed."""
