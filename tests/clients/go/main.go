// Command interop runs franz-go (kgo and kadm) against a broker: many checks in one process, one JSON line per
// check on standard output. Usage: interop BOOTSTRAP. Every check runs, whatever became of the others; the tests
// judge the lines. With a topic as second argument it does what survive.go says instead.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const checkTimeMax = 30 * time.Second

var bootstrap string

type check struct {
	name string
	run  func(ctx context.Context, topic string) error
}

type line struct {
	Check   string `json:"check"`
	Failure string `json:"failure"`
}

func main() {
	bootstrap = os.Args[1]
	if len(os.Args) > 2 {
		if err := survive(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var checks []check
	checks = append(checks, recordChecks()...)
	checks = append(checks, groupChecks()...)
	checks = append(checks, adminChecks()...)
	out := json.NewEncoder(os.Stdout)
	for _, c := range checks {
		if err := out.Encode(line{c.name, outcome(c)}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func outcome(c check) string {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeMax)
	defer cancel()
	if err := c.run(ctx, "go-"+c.name+"-"+suffix()); err != nil {
		return err.Error()
	}
	return ""
}

func suffix() string {
	random := make([]byte, 4)
	rand.Read(random) // Never fails, says its documentation.
	return hex.EncodeToString(random)
}

func client(options ...kgo.Opt) (*kgo.Client, error) {
	options = append([]kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner())}, options...)
	return kgo.NewClient(options...)
}

func admin() (*kadm.Client, error) {
	plain, err := client()
	if err != nil {
		return nil, err
	}
	return kadm.NewClient(plain), nil
}

func createTopic(ctx context.Context, topic string, partitions int32) error {
	adm, err := admin()
	if err != nil {
		return err
	}
	defer adm.Close()
	_, err = adm.CreateTopic(ctx, partitions, 1, nil, topic)
	return err
}

func differ(what string, wanted, found any) error {
	return fmt.Errorf("%s: wanted %v, found %v", what, wanted, found)
}
