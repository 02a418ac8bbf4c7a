"""Whether two nodes reach each other over the control network: names, TCP both ways, the largest datagram that passes, and how fast."""
