"""The overlay without sockets: the same peers in virtual time, on faulty disks and networks, repeatable from a seed."""
