// What every function of the C interface runs in: faults become messages, and calls take turns.
#pragma once

#include <system_error>

#include "model.h"

namespace foredraft {

inline thread_local char message[256];  // of this thread's last failed call

template <class Work>
int guarded(Work work) {
  const char* text = "";
  std::string own;
  try {
    work();
    return 0;
  } catch (const Fault& fault) {
    own = fault.text;
    text = own.c_str();
  } catch (const std::bad_alloc&) {
    text = "there is not enough memory for the native pass";
  } catch (const std::system_error&) {
    text = "the system gives the native pass no more threads";
  } catch (...) {
    text = "the native pass failed in a way that it does not know";
  }
  std::strncpy(message, text, sizeof message - 1);
  return -1;
}

// One call at a time, and none in a child of fork, which has no threads but the caller.
template <class Work>
int in_turn(const fd_model* model, Work work) {
  return guarded([&] {
    std::lock_guard<std::mutex> lock(model->team.turn);
    if (model->process != process_number())
      throw Fault{"the model was loaded before this process forked: load it again"};
    work();
  });
}

}  // namespace foredraft
