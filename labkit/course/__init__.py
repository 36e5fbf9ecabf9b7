"""The lessons: exercises and their grading, notebooks, the ward, the poster."""
