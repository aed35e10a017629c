"""The environments in other systems' shapes: TRL's trainer, OpenEnv's server and client, Gymnasium's vectors."""
