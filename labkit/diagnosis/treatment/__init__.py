"""From a diagnosis to a proven cure on any training program: prescriptions, tried as experiments with controls."""
