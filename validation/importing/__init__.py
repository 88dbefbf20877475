"""Other people's measurements as results of the suite: a module for each kind of file."""
