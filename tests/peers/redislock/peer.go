// redislock in a process of its own, driven line by line; the protocol is told in tests/src/peers.rs.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

const delay = 5 * time.Millisecond

var (
	locks *redislock.Client
	held  *redislock.Lock
)

func main() {
	options, err := redis.ParseURL(os.Args[1])
	if err != nil {
		panic(err)
	}
	locks = redislock.New(redis.NewClient(options))
	fmt.Println("> ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(">", answer(strings.Split(lines.Text(), " ")))
	}
}

func answer(words []string) string {
	switch words[0] {
	case "acquire":
		lock, err := acquire(words[1], milliseconds(words[2]), milliseconds(words[3]))
		if err != nil {
			return fmt.Sprint("refused ", err)
		}
		held = lock
		return "acquired"
	case "extend":
		if err := held.Refresh(context.Background(), milliseconds(words[1]), nil); err != nil {
			return fmt.Sprint("lost ", err)
		}
		return "extended"
	case "release":
		if err := held.Release(context.Background()); err != nil {
			return fmt.Sprint("lost ", err)
		}
		return "released"
	case "increment":
		times, _ := strconv.Atoi(words[3])
		for range times {
			lock, err := acquire(words[1], milliseconds(words[2]), time.Minute)
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
			if err := lock.Release(context.Background()); err != nil {
				return fmt.Sprint("error ", err)
			}
			time.Sleep(time.Millisecond)
		}
		return "done"
	}
	return "error no such request"
}

func acquire(name string, lease, wait time.Duration) (*redislock.Lock, error) {
	if wait == 0 {
		return locks.Obtain(context.Background(), name, lease, nil)
	}
	waiting, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(delay)}
	return locks.Obtain(waiting, name, lease, options)
}

func milliseconds(word string) time.Duration {
	number, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	return time.Duration(number) * time.Millisecond
}
