"""What a peer has promised, on its disk: checksummed records and batches, group commit, snapshots, recovery."""
