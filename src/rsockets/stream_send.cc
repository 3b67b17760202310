// SPDX-License-Identifier: Apache-2.0
/// Sending: copies from the program's memory into the peer's receive buffer.
#include <algorithm>
#include <cerrno>
#include <mutex>

#include "rsockets/cursor.h"
#include "rsockets/limits.h"
#include "rsockets/stream.h"
#include "verbs/private.h"

namespace nupa::rsockets {
namespace {

/// Scattered data up to this size is gathered on the stack and sent inline.
constexpr uint32_t kGather = 256;

ibv_send_wr with_list(ibv_send_wr wr, ibv_sge* list, int count, unsigned int flags) {
  wr.sg_list = list;
  wr.num_sge = count;
  wr.send_flags |= flags;
  return wr;
}

}  // namespace

int Stream::send_error() const {
  const int error = error_.load();
  if (error != 0) return -error;
  return phase() == Phase::kIdle || phase() == Phase::kListening ? -ENOTCONN : -EPIPE;
}

int Stream::wait_for_room(bool nonblocking_call) {
  if (nonblocking_call) {
    std::lock_guard lock(completions_);
    was_writable_ = false;
    progress_locked();
    if (can_send() || !connected()) return 0;
    return -EAGAIN;
  }
  return wait_until(Deadline::in_ms(options_.send_timeout_ms),
                    [this] { return can_send() || write_shut_.load() || !connected(); });
}

uint32_t Stream::chunk(size_t left, uint32_t ramp, uint32_t room) const {
  const size_t most = std::min<size_t>({left, ramp, room, window_.room()});
  return static_cast<uint32_t>(most);
}

ibv_send_wr Stream::write_request(uint32_t staged, uint32_t message, bool is_message, uint64_t addr, uint32_t key) {
  bool signaled;
  ibv_send_wr wr{};
  wr.wr_id = window_.post(staged, is_message, &signaled);
  wr.opcode = is_message ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  if (signaled) wr.send_flags |= IBV_SEND_SIGNALED;
  wr.imm_data = htobe32(message);
  wr.wr.rdma.remote_addr = addr;
  wr.wr.rdma.rkey = key;
  return wr;
}

int Stream::post_write(const ibv_send_wr& wr, ibv_sge* list, int count, unsigned int flags) {
  ibv_send_wr whole = with_list(wr, list, count, flags);
  ibv_send_wr* bad;
  return -ibv_post_send(qp_, &whole, &bad);
}

int Stream::write_chunk(Cursor* from, uint32_t length, uint32_t message, bool is_message, uint64_t addr, uint32_t key) {
  ibv_sge list[2];
  int rc;
  const bool contiguous = length <= from->contiguous();
  if (length <= inline_bytes_ && (contiguous || length <= kGather)) {
    std::byte gathered[kGather];
    if (!contiguous) from->copy_to(gathered, length);
    list[0] = {reinterpret_cast<uintptr_t>(contiguous ? from->at() : gathered), length, 0};
    rc = post_write(write_request(0, message, is_message, addr, key), list, 1, IBV_SEND_INLINE);
    if (contiguous) from->advance(length);
    if (rc != 0) fail(-rc);
    return rc;
  }
  const uint32_t offset = window_.staging_offset();
  const ibv_send_wr wr = write_request(length, message, is_message, addr, key);
  if (executes_at_once_ && contiguous) {
    list[0] = {reinterpret_cast<uintptr_t>(from->at()), length, 0};
    const ibv_send_wr whole = with_list(wr, list, 1, IBV_SEND_INLINE);
    rc = -nupa_verbs_post_inline(qp_, &whole);
    if (rc == 0) from->advance(length);
    if (rc != -EINVAL) {
      if (rc != 0) fail(-rc);
      return rc;
    }
    executes_at_once_ = false;
  }
  const uint32_t first = std::min(length, window_.bytes() - offset);
  from->copy_to(buffers_->send() + offset, first);
  list[0] = {reinterpret_cast<uintptr_t>(buffers_->send() + offset), first, buffers_->lkey()};
  if (first < length) {
    from->copy_to(buffers_->send(), length - first);
    list[1] = {reinterpret_cast<uintptr_t>(buffers_->send()), length - first, buffers_->lkey()};
  }
  rc = post_write(wr, list, first < length ? 2 : 1, 0);
  if (rc != 0) fail(-rc);
  return rc;
}

ssize_t Stream::send(Pieces data, int flags, const sockaddr* to, socklen_t to_length) {
  if (to != nullptr && to_length != 0 && connected()) return -EISCONN;
  if ((flags & MSG_OOB) != 0) return -EOPNOTSUPP;
  const bool nonblocking_call = nonblocking() || (flags & MSG_DONTWAIT) != 0;
  if (!connected()) [[unlikely]] {
    const int rc = connecting() ? finish_connecting(nonblocking_call) : 0;
    if (rc != 0) return rc;
    if (!connected()) {
      const int error = send_error();
      take_error();
      return error;
    }
  }
  std::lock_guard lock(send_mutex_);
  if (mappings_.pending()) [[unlikely]] {
    const int rc = send_table_entries(nonblocking_call);
    if (rc != 0) return rc;
  }
  Cursor cursor(data);
  const size_t total = data.bytes();
  size_t left = total;
  uint32_t ramp = executes_at_once_ ? kFirstWrite : kFirstPacketWrite;
  int rc = 0;
  while (left != 0) {
    if (!can_send()) {
      rc = wait_for_room(nonblocking_call);
      if (rc != 0) break;
    }
    if (!connected() || write_shut_.load(std::memory_order_acquire)) {
      rc = send_error();
      if (left == total) take_error();
      break;
    }
    const uint32_t room = targets_.left();
    if (room == 0) continue;
    const uint32_t length = chunk(left, ramp, room);
    const uint64_t addr = targets_.addr();
    targets_.advance(length);
    rc = write_chunk(&cursor, length, encode(Op::kData, length), true, addr, targets_.key());
    if (rc != 0) break;
    left -= length;
    if (ramp < kMaxWrite) ramp *= 2;
  }
  return rc != 0 && left == total ? rc : static_cast<ssize_t>(total - left);
}

int Stream::send_table_entries(bool nonblocking_call) {
  while (mappings_.pending()) {
    if (!can_send()) {
      const int rc = wait_for_room(nonblocking_call);
      if (rc != 0) return rc;
    }
    if (!connected() || write_shut_.load()) return send_error();
    Mappings::Announcement announcement;
    if (!mappings_.next(&announcement)) break;  // after the wait, in which a buffer may have been unmapped
    RemoteMapping entry = announcement.mapping;
    if (swap_tables_) entry = {__builtin_bswap64(entry.offset), swapped(entry.buffer)};
    const iovec piece{&entry, sizeof entry};
    Cursor cursor(Pieces{&piece, 1});
    const int rc = write_chunk(&cursor, sizeof entry, encode(Op::kMapping, announcement.index), true,
                               mappings_.entry_addr(announcement.index), mappings_.table_key());
    if (rc != 0) return rc;
    mappings_.announced(announcement);
  }
  return 0;
}

off_t Stream::map(void* buffer, size_t length, int protection, off_t offset) {
  if (id_->pd == nullptr || (protection & ~(PROT_WRITE | PROT_NONE)) != 0) return -EINVAL;
  const auto place = offset == -1 ? reinterpret_cast<uintptr_t>(buffer) : static_cast<uintptr_t>(offset);
  const int rc = mappings_.add(id_->pd, buffer, length, (protection & PROT_WRITE) != 0, place);
  return rc != 0 ? rc : static_cast<off_t>(place);
}

int Stream::unmap(void* buffer, size_t length) { return mappings_.remove(buffer, length); }

ssize_t Stream::write_mapped(const std::byte* data, size_t length, off_t offset, int flags) {
  if (!connected()) return send_error();
  const bool nonblocking_call = nonblocking() || (flags & MSG_DONTWAIT) != 0;
  std::lock_guard lock(send_mutex_);
  if (mappings_.pending()) {
    const int rc = send_table_entries(nonblocking_call);
    if (rc != 0) return rc;
  }
  const iovec piece{const_cast<std::byte*>(data), length};
  Cursor cursor(Pieces{&piece, 1});
  size_t left = length;
  uint64_t place = static_cast<uint64_t>(offset);
  uint32_t ramp = executes_at_once_ ? kFirstWrite : kFirstPacketWrite;
  int rc = 0;
  while (left != 0) {
    const RemoteMapping* table = buffers_->mappings();
    const RemoteMapping* end = table + options_.mappings;
    const RemoteMapping* entry = std::find_if(table, end, [&](const RemoteMapping& candidate) {
      return place >= candidate.offset && place - candidate.offset < candidate.buffer.length;
    });
    if (entry == end) {
      rc = left == length ? -EINVAL : 0;
      break;
    }
    if (!can_send()) {
      rc = wait_for_room(nonblocking_call);
      if (rc != 0) break;
    }
    if (!connected() || write_shut_.load()) {
      rc = send_error();
      break;
    }
    const uint64_t inside = place - entry->offset;
    const auto room = static_cast<uint32_t>(entry->buffer.length - inside);
    const uint32_t step = chunk(left, ramp, room);
    rc = write_chunk(&cursor, step, encode(Op::kWrite, step), false, entry->buffer.addr + inside, entry->buffer.key);
    if (rc != 0) break;
    left -= step;
    place += step;
    if (ramp < kMaxWrite) ramp *= 2;
  }
  return rc != 0 && left == length ? rc : static_cast<ssize_t>(length - left);
}

}  // namespace nupa::rsockets
