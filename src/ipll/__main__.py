from ipll.cli import main

main()
