"""The rules, each a short function that reads like its sentence. Its name is the rule's name."""
