"""Images, labels and splits that are not what they should be."""
