"""The main file for spark-submit: `spark-submit ... submit.py mirror --config mm2.properties`."""

from spark_integration.cli.app import main

if __name__ == "__main__":
    main()
