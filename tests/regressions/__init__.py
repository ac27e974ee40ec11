"""Plans that once failed."""
