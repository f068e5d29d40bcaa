"""What a gateway has done, as numbers: read from its live state when somebody asks, never counted on the token path."""
