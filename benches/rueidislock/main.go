// rueidislock in a process of its own, driven line by line; benches/src/bin/loss/rueidislock.rs is the other end.
//
//	hold N     takes N locks, and answers when it has them
//	delete N   deletes the key of each lock with another client; answers the nanoseconds until each lock's context ended
//
// The majority is one key, as one server has it, and the lease is that of the Rust contender.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const prefix = "rueidislock"

func main() {
	address := os.Args[1]
	lease, err := strconv.Atoi(os.Args[2])
	check(err)
	validity := time.Duration(lease) * time.Millisecond
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{address}},
		KeyPrefix:      prefix,
		KeyMajority:    1,
		KeyValidity:    validity,
		ExtendInterval: validity / 3,
		NoLoopTracking: true,
	})
	check(err)
	operator, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, DisableCache: true})
	check(err)
	var held []context.Context
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Split(lines.Text(), " ")
		count, err := strconv.Atoi(words[1])
		check(err)
		switch words[0] {
		case "hold":
			held = nil
			for number := range count {
				lock, _, err := locker.WithContext(context.Background(), "n"+strconv.Itoa(number))
				check(err)
				held = append(held, lock)
			}
			fmt.Println("held")
		case "delete":
			var took []string
			for number := range count {
				key := prefix + ":0:n" + strconv.Itoa(number)
				start := time.Now()
				check(operator.Do(context.Background(), operator.B().Del().Key(key).Build()).Error())
				<-held[number].Done()
				took = append(took, strconv.FormatInt(time.Since(start).Nanoseconds(), 10))
			}
			fmt.Println(strings.Join(took, " "))
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
