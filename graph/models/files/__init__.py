"""Models by files: requests and answers in the formats of OpenAI's batch API, for nodes without a network (`batch`),
the recording that every run leaves (`recording`), and its repetition (`replay`). Nothing here knows LangChain."""
