// redsync in a process of its own, driven line by line; the protocol is told in tests/src/peers.rs.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	client "github.com/redis/go-redis/v9"
)

const delay = 5 * time.Millisecond

var (
	locks *redsync.Redsync
	held  *redsync.Mutex
)

func main() {
	var pools []redis.Pool
	for _, url := range os.Args[1:] {
		options, err := client.ParseURL(url)
		if err != nil {
			panic(err)
		}
		pools = append(pools, goredis.NewPool(client.NewClient(options)))
	}
	locks = redsync.New(pools...)
	fmt.Println("> ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(">", answer(strings.Split(lines.Text(), " ")))
	}
}

func answer(words []string) string {
	switch words[0] {
	case "acquire":
		mutex, err := acquire(words[1], milliseconds(words[2]), milliseconds(words[3]))
		if err != nil {
			return "refused " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		held = mutex
		return "acquired"
	case "extend":
		if extended, err := held.Extend(); !extended {
			return fmt.Sprint("lost ", err)
		}
		return "extended"
	case "release":
		if released, err := held.Unlock(); !released {
			return fmt.Sprint("lost ", err)
		}
		return "released"
	case "increment":
		times, _ := strconv.Atoi(words[3])
		for range times {
			mutex, err := acquire(words[1], milliseconds(words[2]), time.Minute)
			if err != nil {
				return fmt.Sprint("error ", err)
			}
			text, _ := os.ReadFile(words[4])
			number, err := strconv.Atoi(string(text))
			if err != nil {
				return fmt.Sprint("error ", err)
			}
			if err := os.WriteFile(words[4], []byte(strconv.Itoa(number+1)), 0o600); err != nil {
				return fmt.Sprint("error ", err)
			}
			if released, err := mutex.Unlock(); !released {
				return fmt.Sprint("error ", err)
			}
			time.Sleep(time.Millisecond)
		}
		return "done"
	}
	return "error no such request"
}

func acquire(name string, lease, wait time.Duration) (*redsync.Mutex, error) {
	tries := 1 + int(wait/delay)
	mutex := locks.NewMutex(name, redsync.WithExpiry(lease), redsync.WithTries(tries), redsync.WithRetryDelay(delay))
	return mutex, mutex.LockContext(context.Background())
}

func milliseconds(word string) time.Duration {
	number, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	return time.Duration(number) * time.Millisecond
}
