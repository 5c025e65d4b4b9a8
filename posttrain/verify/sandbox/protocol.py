"""What the two sides of the control socket say to each other, and how the longest jobs travel."""

GO = b"go"  # to the server: it is in its cgroups
READY = b"ready"  # from a child: it waits for a job
LONG = b"long"  # in place of a job: it is too long for a message and lies in the last descriptor
MAX_INLINE_BYTES = 1 << 15
