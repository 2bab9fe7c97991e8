"""Every bench, one after the other: `python -m bench`, with --json a line of JSON each."""

from bench import accuracy, attribution, cost, hook, scrape, verdict, worker

for bench in (scrape, cost, worker, attribution, accuracy, verdict, hook):
    bench.main()
    print()
