"""What agentflow's own tests use, for the tests of those who build on it."""
