#include "team.h"

namespace foredraft {
namespace {

constexpr int kSpins = 4000;  // some tens of microseconds; a thread that the system has taken away takes longer

inline void relax(int spin) {
  if (spin % 32 == 31) return std::this_thread::yield();  // whoever we wait for may be waiting for this core
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace

Team::Team(int threads) : size_(threads), taken_(new Taken[threads]) {
  try {
    for (int number = 1; number < size_; ++number) threads_.emplace_back([this, number] { live(number); });
  } catch (...) {
    end();
    throw;
  }
}

void Team::end() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  called_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::live(int number) {
  unsigned seen = 0;
  for (;;) {
    for (int spin = 0; awake.load() && calls_.load() == seen && spin < kSpins; ++spin) relax(spin);
    {
      std::unique_lock<std::mutex> lock(mutex_);
      called_.wait(lock, [&] { return ending_ || calls_ != seen; });
      if (ending_) return;
      seen = calls_;
    }
    (*work_)(number);
    barrier();
  }
}

void Team::run(const std::function<void(int)>& work) {
  recount();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    ++calls_;
  }
  called_.notify_all();
  work(0);
  barrier();
}

void Team::recount() {
  for (int i = 0; i < size_; ++i) taken_[i].count.store(0, std::memory_order_relaxed);
}

void Team::barrier() {
  if (size_ == 1) {
    recount();
    return;
  }
  const unsigned generation = generation_.load();
  if (arrived_.fetch_add(1) + 1 == size_) {
    arrived_.store(0);
    recount();
    generation_.store(generation + 1);
    if (sleepers_.load()) {
      { std::lock_guard<std::mutex> lock(mutex_); }
      passed_.notify_all();
    }
    return;
  }
  for (int spin = 0; spin < kSpins; ++spin) {
    if (generation_.load() != generation) return;
    relax(spin);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  ++sleepers_;
  passed_.wait(lock, [&] { return generation_.load() != generation; });
  --sleepers_;
}

}  // namespace foredraft
