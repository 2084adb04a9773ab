#include "team.h"

#include <linux/futex.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace tgk {
namespace {

// About 200 us on the processors tried: longer than what one op of a step takes, and than what the router takes from a
// thread for one token; shorter than a scheduler's slice. docs/cpu-kernels.md has the measurements.
constexpr int kSpins = 6000;

void pause_a_moment() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// A number that only grows; threads wait for it to change.
class Signal {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }

  void raise() {
    value_.fetch_add(1);
    if (sleepers_.load()) syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  }

  void wait_past(uint32_t seen) {
    for (int i = 0; i < kSpins; i++) {
      if (value() != seen) return;
      pause_a_moment();
    }
    sleepers_.fetch_add(1);
    while (value_.load() == seen) syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    sleepers_.fetch_sub(1);
  }

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

struct Block {
  char* data = nullptr;
  size_t bytes = 0;
};

}  // namespace

struct Team::State {
  alignas(64) Signal begin;
  alignas(64) Signal passed;  // raised when the last thread reaches a barrier
  alignas(64) std::atomic<int> arrived{0};
  void (*work)(void*, int) = nullptr;
  void* context = nullptr;
  bool ending = false;
  std::vector<std::thread> threads;
  std::vector<Block> blocks;
};

Team::Team(int num_threads) : state_(new State), size_(num_threads < 1 ? 1 : num_threads) {
  state_->blocks.resize(size_ + 1);
  for (int thread = 1; thread < size_; thread++)
    state_->threads.emplace_back([this, thread] {
      uint32_t seen = 0;
      for (;;) {
        state_->begin.wait_past(seen);
        seen++;
        if (state_->ending) return;
        state_->work(state_->context, thread);
        barrier();
      }
    });
}

Team::~Team() {
  state_->ending = true;
  state_->begin.raise();
  for (std::thread& thread : state_->threads) thread.join();
  for (Block& block : state_->blocks) free(block.data);
  delete state_;
}

void Team::run(void (*work)(void*, int), void* context) {
  if (size_ > 1) {
    state_->work = work;
    state_->context = context;
    state_->begin.raise();
  }
  work(context, 0);
  barrier();
}

void Team::barrier() {
  if (size_ == 1) return;
  const uint32_t seen = state_->passed.value();
  if (state_->arrived.fetch_add(1) + 1 == size_) {
    state_->arrived.store(0);
    state_->passed.raise();
  } else {
    state_->passed.wait_past(seen);
  }
}

char* Team::scratch(int index, size_t bytes) {
  Block& block = state_->blocks[index];
  if (block.bytes < bytes) {
    free(block.data);
    block.bytes = (bytes + 4095) / 4096 * 4096;
    block.data = static_cast<char*>(aligned_alloc(64, block.bytes));
    if (!block.data) block.bytes = 0;
  }
  return block.data;
}

}  // namespace tgk
