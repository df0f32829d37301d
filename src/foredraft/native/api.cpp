// The boundary: checks arguments.
#include "guard.h"

using namespace foredraft;

namespace {

void check_threads(int32_t threads) {
  if (threads < 1 || threads > 1024) throw Fault{"threads must be from 1 to 1024"};
}

}  // namespace

int fd_version() { return FD_VERSION; }

const char* fd_error() { return message; }

uint64_t fd_packed_bytes(const fd_spec* spec) {
  uint64_t bytes = 0;
  guarded([&] { bytes = foredraft::Layout(*spec).bytes(); });
  return bytes;
}

int fd_pack(const fd_spec* spec, void* packed, int32_t part, int32_t layer, const void* source, int32_t type,
            int64_t rows, int64_t cols, int64_t first) {
  return guarded([&] { foredraft::pack(*spec, packed, part, layer, source, type, rows, cols, first); });
}

int fd_digest(const void* packed, uint64_t bytes, int32_t threads, uint64_t* digest) {
  return guarded([&] {
    check_threads(threads);
    if (bytes % 64) throw Fault{"packed weights are whole lines of 64 bytes"};
    *digest = foredraft::digest(packed, bytes, threads);
  });
}

int fd_open(const fd_spec* spec, const void* packed, uint64_t bytes, const char* tier, int32_t threads,
            fd_model** model) {
  return guarded([&] {
    const foredraft::Tier* on = foredraft::find_tier(tier);
    if (!on) throw Fault{std::string("this machine has no tier ") + tier};
    check_threads(threads);
    if (bytes != foredraft::Layout(*spec).bytes() || reinterpret_cast<uintptr_t>(packed) % 64)
      throw Fault{"the packed weights are not those of this model"};
    *model = new fd_model(*spec, packed, *on, std::make_shared<foredraft::Team>(threads));
  });
}

void fd_close(fd_model* model) {
  if (model && model->process == foredraft::process_number()) delete model;  // else its threads live in the parent
}

int fd_forward(fd_model* model, const fd_request* request) {
  return in_turn(model, [&] { foredraft::forward(*model, *request); });
}

int fd_compact(fd_model* model, int32_t slot, int32_t start, const int32_t* rows, int32_t count) {
  return in_turn(model, [&] {
    const auto found = model->slots.find(slot);
    const size_t held = found == model->slots.end() ? 0 : found->second.held;
    bool fine = start >= 0 && count >= 0 && size_t(start) <= held;
    for (int32_t i = 0; fine && i < count; ++i)
      fine = rows[i] >= 0 && (!i || rows[i] > rows[i - 1]) && size_t(start) + rows[i] < held;
    if (!fine) throw Fault{"the rows to keep are not rows of slot " + std::to_string(slot)};
    if (held) foredraft::compact(*model, found->second, start, rows, count);
  });
}

int fd_release(fd_model* model, int32_t slot) {
  return in_turn(model, [&] { model->slots.erase(slot); });
}

int fd_subset(fd_model* model, const int32_t* ids, int32_t count, int32_t* subset) {
  return in_turn(model, [&] { *subset = foredraft::make_subset(*model, ids, count); });
}

int fd_floor(fd_model* model, double* seconds) {
  return in_turn(model, [&] { *seconds = foredraft::read_all(*model); });
}

int fd_memory(fd_model* model, uint64_t* working, uint64_t* slots) {
  return in_turn(model, [&] {
    *working = model->shared.bytes();
    for (const auto& buffer : model->own) *working += buffer.bytes();
    *slots = 0;
    for (const auto& slot : model->slots) *slots += slot.second.pages.size() * model->page_bytes();
  });
}
