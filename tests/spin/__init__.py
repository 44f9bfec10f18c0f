"""Model checking: the protocol of one key in Promela (`protocol.pml`), every interleaving of it tried by Spin."""
