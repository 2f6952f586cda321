"""The verdict on one candidate, in processes of its own, without Ray: how it is made (`judge`), its steps spread over
processes (`steps`), what such a process does (`examiner`), and a look at the reference before all (`reference`)."""
