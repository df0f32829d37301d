"""The certificate: equality of texts, the distribution of sampled text, planted faults that must be found."""
