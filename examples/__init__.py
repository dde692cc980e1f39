"""Programs that use anabranch as anybody could: README.md says what each shows. `make run` runs `examples.demo`."""
