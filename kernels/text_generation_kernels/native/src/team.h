// A few threads that run the same function together, with barriers in it: the caller is thread 0.
//
// Its own, and not OpenMP's: torch brings an OpenMP runtime inside its wheel, and a second one in the same process would
// keep a second set of spinning threads. Here a thread that waits spins for a moment, then sleeps, so that another
// process on the same cores (the router) gets them. Knows nothing about kernels.
#pragma once

#include <stddef.h>

namespace tgk {

class Team {
 public:
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  // Calls work(context, thread) on every thread and returns when all have returned. Not for two callers at once.
  void run(void (*work)(void* context, int thread), void* context);
  // Inside `run`: returns when every thread has come here.
  void barrier();
  // Memory of one thread (or, at index `size()`, of all), at least `bytes` large and 64-byte aligned. Kept until the
  // next call asks for more; contents are then lost. Null when there is none.
  char* scratch(int index, size_t bytes);

 private:
  struct State;
  State* state_;
  int size_;
};

}  // namespace tgk
