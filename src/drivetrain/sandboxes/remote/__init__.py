"""What sandboxes on other people's machines share: short calls only, and a supervisor inside that loses nothing."""
