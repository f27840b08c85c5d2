"""Queues: deliveries are made from the log, claimed by any number of workers, and settled one by one."""
