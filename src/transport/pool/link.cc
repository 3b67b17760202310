// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/link.h"

#include <algorithm>
#include <cstring>

#include "base/memory_fault.h"

namespace nupa::pool {

bool Link::gather(const base::Piece* pieces, uint32_t count, std::byte* to) {
  for (uint32_t i = 0; i < count; ++i) {
    const base::Piece& piece = pieces[i];
    if (piece.data == nullptr)
      std::memset(to, 0, piece.length);
    else if (!base::try_access(piece.data, piece.length, [&] { std::memcpy(to, piece.data, piece.length); }))
      return false;
    to += piece.length;
  }
  return true;
}

bool Link::store(const base::Piece* pieces, uint32_t count, uint32_t length) {
  if (count == 1 && pieces->data != nullptr) {
    // store() owns nothing while it copies, so a fault may leave it in the middle. Nothing was published.
    return base::try_access(pieces->data, length, [&] { channel_->store(0, pieces->data, length); });
  }
  if (!gather(pieces, count, staging_.get())) return false;
  channel_->store(0, staging_.get(), length);
  return true;
}

Link::Wrote Link::put(const Header& header) {
  std::lock_guard lock(mutex_);
  if (is_lost()) return Wrote::kLost;
  if (!channel_->put(header)) return Wrote::kNotNow;
  if (has_doorbells_) channel_->wake();
  return Wrote::kYes;
}

Link::Wrote Link::write(const Record& record, const base::Piece* pieces, uint32_t count) {
  Header header;
  if (record.length <= inline_room(record)) {
    std::byte small[Header::kBytes];
    if (record.length > 0 && !gather(pieces, count, small)) return Wrote::kUnreadable;
    encode(record, record.length == 0 ? nullptr : small, &header);
    return put(header);
  }
  encode(record, nullptr, &header);
  std::lock_guard lock(mutex_);
  if (is_lost()) return Wrote::kLost;
  if (!channel_->is_open() || !channel_->fits(header.payload_lines)) return Wrote::kNotNow;
  if (!store(pieces, count, record.length)) return Wrote::kUnreadable;
  channel_->publish(header);
  if (has_doorbells_) channel_->wake();
  return Wrote::kYes;
}

Link::Wrote Link::write_own(const Record& record, const std::byte* payload) {
  if (record.length > inline_room(record)) {
    const base::Piece piece{const_cast<std::byte*>(payload), record.length};
    return write(record, &piece, 1);
  }
  Header header;
  encode(record, payload, &header);
  return put(header);
}

Link::Wrote Link::place(const Record& record, std::byte* to, const base::Piece* pieces, uint32_t count) {
  Header header;
  encode(record, nullptr, &header);
  // The lock is held to the end of the copy: when take_channel() returns, no thread writes to the peer's memory.
  std::lock_guard lock(mutex_);
  if (is_lost()) return Wrote::kLost;
  if (!channel_->is_open() || !channel_->fits(0)) return Wrote::kNotNow;
  for (uint32_t i = 0; i < count; ++i) {
    const base::Piece& piece = pieces[i];
    if (piece.data == nullptr) {
      std::memset(staging_.get(), 0, piece.length);
      channel_->place(to, staging_.get(), piece.length);
    } else if (!base::try_access(piece.data, piece.length, [&] { channel_->place(to, piece.data, piece.length); })) {
      return Wrote::kUnreadable;
    }
    to += piece.length;
  }
  channel_->publish(header);
  if (has_doorbells_) channel_->wake();
  return Wrote::kYes;
}

Link::Wrote Link::write_answers(std::span<const uint64_t> words) {
  Header header;
  encode_answers(words, &header);
  return put(header);
}

bool Link::flush_answers() {
  size_t done = 0;
  while (done < answers_.size()) {
    const size_t number = std::min(kMaxAnswers, answers_.size() - done);
    const Wrote wrote = write_answers({answers_.data() + done, number});
    if (wrote == Wrote::kNotNow) break;
    done += number;
  }
  answers_.erase(answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(done));
  return answers_.empty();
}

void Link::wait_for_room(Receiver& receiver) {
  std::lock_guard lock(mutex_);
  if (is_lost() || receiver.waits_for_room_) return;
  receiver.waits_for_room_ = true;
  receiver.next_waiter_ = nullptr;
  (first_waiter_ == nullptr ? first_waiter_ : last_waiter_->next_waiter_) = &receiver;
  last_waiter_ = &receiver;
  waiters_.fetch_add(1, std::memory_order_relaxed);
}

Receiver* Link::next_waiter() {
  std::lock_guard lock(mutex_);
  if (first_waiter_ == nullptr) return nullptr;
  if (!is_lost()) {
    // Room for the longest part: otherwise the queue pairs with short messages would keep out the others.
    const auto lines = static_cast<uint16_t>(lines_of(part_bytes_));
    if (!channel_->is_open() || !channel_->fits(lines)) return nullptr;
  }
  Receiver* const receiver = first_waiter_;
  first_waiter_ = receiver->next_waiter_;
  receiver->waits_for_room_ = false;
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  return receiver;
}

void Link::forget(Receiver& receiver) {
  std::lock_guard lock(mutex_);
  Receiver* before = nullptr;
  for (Receiver* each = first_waiter_; each != nullptr; before = each, each = each->next_waiter_) {
    if (each != &receiver) continue;
    (before == nullptr ? first_waiter_ : before->next_waiter_) = receiver.next_waiter_;
    if (last_waiter_ == &receiver) last_waiter_ = before;
    receiver.waits_for_room_ = false;
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
}

}  // namespace nupa::pool
