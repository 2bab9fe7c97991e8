// Serves one file, compressed as it is: the latency that a scrape has at least with Go's net/http.
package main

import (
	"log"
	"net/http"
	"os"
	"path/filepath"
)

func main() {
	file, port := os.Args[1], os.Args[2]
	http.HandleFunc("/"+filepath.Base(file), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "text/plain")
		http.ServeFile(w, r, file)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+port, nil))
}
