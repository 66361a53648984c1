"""What all tests share."""

from hypothesis import settings

# No deadline: a shared machine pauses now and then. The same examples each time: a failure is the change's, not the day's.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")
