"""Every bench, one after the other: `python -m bench`, with --json a line of JSON each."""

from bench import cost, hook, scrape, worker

for bench in (scrape, cost, worker, hook):
    bench.main()
    print()
