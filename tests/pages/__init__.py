"""The documents: every block of code is run, or says why not; the site builds, and its pages load nothing."""
