"""The control plane: small messages and heartbeats between supervisors, over the launcher's store."""
