// Threads of our own: created once, parked between calls, meeting at barriers within one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace foredraft {

class Team {
 public:
  explicit Team(int threads);  // throws std::system_error
  ~Team() { end(); }

  int size() const { return size_; }
  std::mutex turn;  // held by whoever calls run: models may share a team
  // Runs work(thread number) on all threads, the caller being number 0; work must not throw.
  void run(const std::function<void(int)>& work);
  // Whether threads wait awake for the next call, for some tens of microseconds: where one follows at once.
  std::atomic<bool> awake{false};
  // Within run: waits for all threads; then begins a new count of pieces.
  void barrier();
  // The first piece of a thread's own share of `total`.
  size_t share(int thread, size_t total) const { return total * thread / size_; }
  // Within run: takes up to `grain` pieces, of the thread's own share first, then of those who are slower. False when
  // none is left.
  bool claim(int thread, size_t total, size_t grain, size_t* begin, size_t* end) {
    for (int i = 0; i < size_; ++i) {
      const int of = thread + i < size_ ? thread + i : thread + i - size_;
      const size_t first = share(of, total), stop = share(of + 1, total);
      if (first + taken_[of].count.load(std::memory_order_relaxed) >= stop) continue;
      *begin = first + taken_[of].count.fetch_add(grain, std::memory_order_relaxed);
      *end = *begin + grain < stop ? *begin + grain : stop;
      if (*begin < stop) return true;
    }
    return false;
  }

 private:
  void live(int number);
  void end();
  void recount();

  const int size_;
  const std::function<void(int)>* work_ = nullptr;
  std::mutex mutex_;
  std::condition_variable called_, passed_;
  std::atomic<unsigned> calls_{0};
  bool ending_ = false;
  struct alignas(64) Taken {
    std::atomic<size_t> count{0};
  };
  std::unique_ptr<Taken[]> taken_;  // [threads] of each one's share
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> generation_{0};
  std::atomic<int> sleepers_{0};
  std::vector<std::thread> threads_;
};

}  // namespace foredraft
