// SPDX-License-Identifier: Apache-2.0
// The ring of frames between two nodes, and the proof of a network's key.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "netdev/peer_authentication.h"
#include "netdev/ring.h"

namespace nupa::netdev {
namespace {

struct Ring {
  std::vector<std::byte> memory = std::vector<std::byte>(kRingBytes + kRecordAlign);
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + (kRecordAlign - address % kRecordAlign) % kRecordAlign;
  }
};

/// A frame whose bytes tell its number.
void fill(std::byte* room, uint32_t bytes, uint64_t number) {
  std::fill(room, room + bytes, static_cast<std::byte>(number % 251));
  if (bytes >= sizeof number) std::memcpy(room, &number, sizeof number);
}

bool is_right(std::span<const std::byte> frame, uint32_t bytes, uint64_t number) {
  std::vector<std::byte> wanted(bytes);
  fill(wanted.data(), bytes, number);
  return std::equal(frame.begin(), frame.end(), wanted.begin(), wanted.end());
}

uint32_t length_of(uint64_t number) {
  std::minstd_rand random(static_cast<uint32_t>(number + 1));
  const uint32_t kind = static_cast<uint32_t>(random()) % 4;
  return kind == 0 ? kMaxFrameBytes : static_cast<uint32_t>(random()) % (kind == 1 ? 100 : 20000);
}

TEST(NetdevRing, FramesComeInTheirOrderWhole) {
  Ring ring;
  RingWriter writer(ring.data());
  RingReader reader(ring.data());
  std::mt19937 random(7);
  uint64_t put = 0, taken = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    for (auto more = random() % 8; more > 0; --more) {
      std::byte* const room = writer.reserve(reader.head());
      if (room == nullptr) break;
      fill(room, length_of(put), put);
      writer.commit(length_of(put));
      ++put;
    }
    for (auto more = random() % 8; more > 0; --more) {
      const auto frame = reader.next(writer.tail());
      if (!frame) break;
      ASSERT_TRUE(is_right(*frame, length_of(taken), taken)) << taken;
      reader.done();
      ++taken;
    }
  }
  EXPECT_GT(put, 20000u);
  EXPECT_GT(writer.tail(), 20 * kRingBytes);
  EXPECT_FALSE(reader.is_broken());
}

TEST(NetdevRing, AFullOneHasNoRoomUntilItIsRead) {
  Ring ring;
  RingWriter writer(ring.data());
  RingReader reader(ring.data());
  size_t frames = 0;
  while (std::byte* room = writer.reserve(0)) {
    fill(room, 1000, frames++);
    writer.commit(1000);
  }
  EXPECT_GT(frames, (kRingBytes - 2 * kMaxRecordBytes) / record_bytes(1000));
  EXPECT_EQ(nullptr, writer.reserve(0));
  for (size_t i = 0; i < frames; ++i) {
    const auto frame = reader.next(writer.tail());
    ASSERT_TRUE(frame && is_right(*frame, 1000, i)) << i;
    reader.done();
  }
  EXPECT_FALSE(reader.next(writer.tail()));
  EXPECT_NE(nullptr, writer.reserve(reader.head()));
}

TEST(NetdevRing, BetweenThreads) {
  Ring ring;
  alignas(64) RingWords words{};
  constexpr uint64_t kFrames = 3000;
  std::thread reading([&] {
    RingReader reader(ring.data());
    for (uint64_t number = 0; number < kFrames;) {
      const auto frame = reader.next(words.tail.load(std::memory_order_acquire));
      if (!frame) {
        std::this_thread::yield();
        continue;
      }
      ASSERT_TRUE(is_right(*frame, length_of(number), number)) << number;
      reader.done();
      words.head.store(reader.head(), std::memory_order_release);
      ++number;
    }
  });
  RingWriter writer(ring.data());
  for (uint64_t number = 0; number < kFrames;) {
    std::byte* const room = writer.reserve(words.head.load(std::memory_order_acquire));
    if (room == nullptr) {
      std::this_thread::yield();
      continue;
    }
    fill(room, length_of(number), number);
    writer.commit(length_of(number));
    words.tail.store(writer.tail(), std::memory_order_release);
    ++number;
  }
  reading.join();
}

TEST(NetdevRing, WhatCannotBeIsNotFollowed) {
  Ring ring;
  const auto put = [&](uint64_t at, uint32_t bytes) {
    const Record record{bytes, 0};
    std::memcpy(ring.data() + at, &record, sizeof record);
  };
  const auto breaks = [&](uint64_t tail) {
    RingReader reader(ring.data());
    const auto frame = reader.next(tail);
    return !frame && reader.is_broken();
  };
  put(0, 100);
  EXPECT_FALSE(breaks(record_bytes(100)));
  EXPECT_FALSE(breaks(0));
  EXPECT_TRUE(breaks(kRecordAlign));               // the record is longer than what is there
  EXPECT_TRUE(breaks(kRingBytes + kRecordAlign));  // more than fits
  EXPECT_TRUE(breaks(record_bytes(100) + 1));      // not where a record may end
  put(0, kMaxFrameBytes + 1);
  EXPECT_TRUE(breaks(kRingBytes));
  // One that would reach over the end.
  RingReader reader(ring.data());
  put(0, kMaxFrameBytes);
  uint64_t at = 0;
  while (kRingBytes - at >= kMaxRecordBytes) {
    put(at, kMaxFrameBytes);
    at += kMaxRecordBytes;
    ASSERT_TRUE(reader.next(at));
    reader.done();
  }
  put(at, kMaxFrameBytes);
  EXPECT_FALSE(reader.next(at + kMaxRecordBytes));
  EXPECT_TRUE(reader.is_broken());
}

/// Moves the writer on by whole frames, whatever there is room for.
void go_to(RingWriter& writer, uint64_t tail) {
  while (writer.tail() < tail) {
    uint64_t bytes = std::min(tail - writer.tail(), kMaxRecordBytes);
    bytes = std::min(bytes, kRingBytes - writer.tail() % kRingBytes);
    writer.commit(static_cast<uint32_t>(bytes - kRecordAlign + 1));  // the shortest that takes so much
  }
  ASSERT_EQ(tail, writer.tail());
}

TEST(NetdevRing, RecordBytes_AreWholeLinesWithTheRecord) {
  EXPECT_EQ(64u, record_bytes(0));
  EXPECT_EQ(64u, record_bytes(56));
  EXPECT_EQ(128u, record_bytes(57));
  EXPECT_EQ(128u, record_bytes(120));
  EXPECT_EQ(192u, record_bytes(121));
  EXPECT_EQ(12u + 65535, kMaxFrameBytes);
}

TEST(NetdevRing, Reserve_RoomForTheLargestFrame_IsNeededToTheLine) {
  Ring ring;
  RingWriter writer(ring.data());
  // In the middle of the second round, so that the room lies around nothing.
  const uint64_t tail = kRingBytes + kRingBytes / 2;
  go_to(writer, tail);
  const uint64_t least = tail + kMaxRecordBytes - kRingBytes;
  EXPECT_EQ(nullptr, writer.reserve(least - kRecordAlign));
  EXPECT_EQ(tail, writer.tail());
  EXPECT_EQ(ring.data() + tail % kRingBytes + sizeof(Record), writer.reserve(least));
  EXPECT_EQ(tail, writer.tail());
}

TEST(NetdevRing, Reserve_FrameThatFitsBeforeTheEndToTheLine_DoesNotSkip) {
  Ring ring;
  RingWriter writer(ring.data());
  go_to(writer, kRingBytes - kMaxRecordBytes);
  EXPECT_EQ(ring.data() + kRingBytes - kMaxRecordBytes + sizeof(Record), writer.reserve(0));
  EXPECT_EQ(kRingBytes - kMaxRecordBytes, writer.tail());
}

TEST(NetdevRing, Reserve_OneLineShortOfTheEnd_SkipsOnceThereIsRoomBehindIt) {
  Ring ring;
  RingWriter writer(ring.data());
  RingReader reader(ring.data());
  const uint64_t tail = kRingBytes - kMaxRecordBytes + kRecordAlign;
  go_to(writer, tail);
  EXPECT_EQ(nullptr, writer.reserve(0));
  EXPECT_EQ(nullptr, writer.reserve(kMaxRecordBytes - kRecordAlign));
  EXPECT_EQ(tail, writer.tail());
  ASSERT_TRUE(reader.next(tail));
  reader.done();
  EXPECT_EQ(kMaxRecordBytes, reader.head());
  EXPECT_EQ(ring.data() + sizeof(Record), writer.reserve(kMaxRecordBytes));
  EXPECT_EQ(kRingBytes, writer.tail());
  fill(ring.data() + sizeof(Record), 100, 5);
  writer.commit(100);
  // The reader follows: all that was there, then what lies at the beginning.
  uint64_t frames = 1;
  std::optional<std::span<const std::byte>> frame;
  for (; (frame = reader.next(writer.tail())) && reader.head() < kRingBytes && frames < 100; reader.done()) ++frames;
  EXPECT_EQ((tail + kMaxRecordBytes - 1) / kMaxRecordBytes, frames);
  ASSERT_TRUE(frame);
  EXPECT_EQ(ring.data() + sizeof(Record), frame->data());
  EXPECT_TRUE(is_right(*frame, 100, 5));
  reader.done();
  EXPECT_EQ(writer.tail(), reader.head());
  EXPECT_FALSE(reader.next(writer.tail()));
  EXPECT_FALSE(reader.is_broken());
}

TEST(NetdevRing, Next_TailThatCannotBe_BreaksIt) {
  Ring ring;
  const auto put = [&](uint64_t at, uint32_t bytes) {
    const Record record{bytes, 0};
    std::memcpy(ring.data() + at, &record, sizeof record);
  };
  // A reader that has read a frame, and could read more.
  for (uint64_t at = 0; at < kRingBytes; at += kRecordAlign) put(at, 56);
  const auto after = [&](uint64_t head, uint64_t tail) {
    RingReader reader(ring.data());
    while (reader.head() < head) {
      EXPECT_TRUE(reader.next(head));
      reader.done();
    }
    const bool has = reader.next(tail).has_value();
    EXPECT_EQ(!has && tail != head, reader.is_broken());
    EXPECT_EQ(head, reader.head());
    return has;
  };
  constexpr uint64_t kHead = 10 * kRecordAlign;
  EXPECT_FALSE(after(kHead, kHead));
  EXPECT_FALSE(after(kHead, kHead - kRecordAlign));  // it goes back
  EXPECT_FALSE(after(kHead, 0));
  EXPECT_FALSE(after(kHead, UINT64_MAX - kRecordAlign + 1));
  EXPECT_TRUE(after(kHead, kHead + kRingBytes));  // a full ring
  EXPECT_FALSE(after(kHead, kHead + kRingBytes + kRecordAlign));
  EXPECT_FALSE(after(kHead, kHead + kRecordAlign / 2));  // no record ends there
  EXPECT_FALSE(after(kHead, kHead + 8));
  EXPECT_TRUE(after(kHead, kHead + kRecordAlign));
}

TEST(NetdevRing, Next_RecordThatEndsAtTheTailOrAtTheRingsEnd_IsTaken) {
  Ring ring;
  const auto put = [&](uint64_t at, uint32_t bytes) {
    const Record record{bytes, 0};
    std::memcpy(ring.data() + at, &record, sizeof record);
  };
  put(0, kMaxFrameBytes);
  RingReader reader(ring.data());
  EXPECT_EQ(kMaxFrameBytes, reader.next(kMaxRecordBytes)->size());
  RingReader shorter(ring.data());
  EXPECT_FALSE(shorter.next(kMaxRecordBytes - kRecordAlign));
  EXPECT_TRUE(shorter.is_broken());
  put(0, 57);  // two lines with its record
  RingReader longer(ring.data());
  EXPECT_FALSE(longer.next(kRecordAlign));
  EXPECT_TRUE(longer.is_broken());
  // One line before the end: one line fits, a byte more does not, however far the tail is.
  for (const uint32_t bytes : {56u, 57u}) {
    for (uint64_t at = 0; at < kRingBytes; at += kRecordAlign) put(at, 56);
    put(kRingBytes - kRecordAlign, bytes);
    RingReader last(ring.data());
    while (last.head() < kRingBytes - kRecordAlign) {
      ASSERT_TRUE(last.next(kRingBytes));
      last.done();
    }
    EXPECT_EQ(bytes == 56, last.next(kRingBytes + kRecordAlign).has_value());
    EXPECT_EQ(bytes == 57, last.is_broken());
  }
}

TEST(NetdevRing, Next_SkipOfWhatTheTailDoesNotReach_BreaksIt) {
  Ring ring;
  const Record skip{Record::kSkip, 0}, line{56, 0};
  std::memcpy(ring.data(), &line, sizeof line);
  std::memcpy(ring.data() + kRecordAlign, &skip, sizeof skip);
  const auto reads = [&](uint64_t tail) {
    RingReader reader(ring.data());
    EXPECT_TRUE(reader.next(tail));
    reader.done();
    reader.next(tail);
    return std::pair(reader.head(), reader.is_broken());
  };
  EXPECT_EQ(std::pair(kRingBytes, false), reads(kRingBytes));
  EXPECT_EQ(std::pair(uint64_t{kRecordAlign}, true), reads(kRingBytes - kRecordAlign));
  EXPECT_EQ(std::pair(uint64_t{kRecordAlign}, true), reads(2 * kRecordAlign));
}

TEST(NetdevRing, Next_LengthThatChangesAfterwards_IsNotReadAgain) {
  Ring ring;
  Record record{1000, 0};
  std::memcpy(ring.data(), &record, sizeof record);
  RingReader reader(ring.data());
  const auto frame = reader.next(4096);
  ASSERT_TRUE(frame);
  record.bytes = 3000;
  std::memcpy(ring.data(), &record, sizeof record);
  EXPECT_EQ(1000u, frame->size());
  reader.done();
  EXPECT_EQ(record_bytes(1000), reader.head());
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

TEST(NetdevPeerAuthentication, HoldsForTheSameKeyNetworkNoncesAndWordsOnly) {
  const Key key = *new_key();
  const Nonce asking = *new_nonce(), answering = *new_nonce();
  const auto authentication = [&](const Key& with, const std::string& network, const Nonce& one, const Nonce& other) {
    PeerAuthentication made(with, network);
    made.set_asking(one);
    made.set_answering(other);
    return made;
  };
  const std::string text = "words";
  const Mac mac = authentication(key, "lab", asking, answering).answers(bytes_of(text));
  EXPECT_TRUE(are_equal(mac, authentication(key, "lab", asking, answering).answers(bytes_of(text))));
  EXPECT_FALSE(are_equal(mac, authentication(*new_key(), "lab", asking, answering).answers(bytes_of(text))));
  EXPECT_FALSE(are_equal(mac, authentication(key, "lob", asking, answering).answers(bytes_of(text))));
  EXPECT_FALSE(are_equal(mac, authentication(key, "lab", *new_nonce(), answering).answers(bytes_of(text))));
  EXPECT_FALSE(are_equal(mac, authentication(key, "lab", asking, *new_nonce()).answers(bytes_of(text))));
  EXPECT_FALSE(are_equal(mac, authentication(key, "lab", asking, answering).answers(bytes_of("word"))));
  EXPECT_FALSE(are_equal(mac, authentication(key, "lab", asking, answering).asks(bytes_of(text))));
  // A message stands for its sender and its place.
  const PeerAuthentication one = authentication(key, "lab", asking, answering);
  const Mac first = one.of_message(true, 0, bytes_of(text));
  EXPECT_FALSE(are_equal(first, one.of_message(false, 0, bytes_of(text))));
  EXPECT_FALSE(are_equal(first, one.of_message(true, 1, bytes_of(text))));
}

TEST(NetdevPeerAuthentication, KeysAreHexadecimalText) {
  const Key key = *new_key();
  EXPECT_EQ(key, *key_from_text(text_of(key)));
  EXPECT_EQ(key, *key_from_text(" \n" + text_of(key) + "\r\n"));
  EXPECT_NE(*new_key(), *new_key());
  for (const std::string& text : {std::string(), text_of(key) + "0", text_of(key).substr(1), std::string(64, 'g')})
    EXPECT_FALSE(key_from_text(text)) << text;
}

/// 32 bytes of 64 digits.
Mac mac_from(const std::string& text) {
  const auto key = key_from_text(text);
  Mac mac{};
  if (key) std::copy(key->begin(), key->end(), mac.begin());
  return mac;
}

TEST(NetdevPeerAuthentication, Macs_OfKnownWords_AreThoseOfTheWireFormat) {
  // As Python's hmac makes them of the key, and behind its length each: purpose, network, both nonces, words.
  Key key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(i);
  Nonce asking, answering;
  for (size_t i = 0; i < asking.size(); ++i) {
    asking[i] = static_cast<uint8_t>(100 + i);
    answering[i] = static_cast<uint8_t>(200 + i);
  }
  PeerAuthentication authentication(key, "lab");
  authentication.set_asking(asking);
  EXPECT_EQ(mac_from("ddccc9de71ed23c799c54869f142e115adb8df0f57040a4bb57ba31b56e86738"),
            authentication.asks(bytes_of("words")));
  authentication.set_answering(answering);
  EXPECT_EQ(mac_from("ea109898bf6f828bb7e134bcd84f02a7c6bca3828d56d7d473e7c615dd2fd28c"),
            authentication.answers(bytes_of("words")));
  EXPECT_EQ(mac_from("5735669512f6d77bbba4840809eb61215a83d869efdd956094350d19a97ad71d"),
            authentication.of_message(true, 0, bytes_of("words")));
  EXPECT_EQ(mac_from("a45883aa581a78c022f7b9f6338989d6c51dd90d984cd366e6a4863c25b24554"),
            authentication.of_message(false, 7, bytes_of("words")));
}

TEST(NetdevPeerAuthentication, Mac_EachByteOfKeyNoncesAndWords_ChangesIt) {
  Key key{};
  Nonce asking{}, answering{};
  std::string text(40, 'a');
  const auto mac = [&] {
    PeerAuthentication authentication(key, "lab");
    authentication.set_asking(asking);
    authentication.set_answering(answering);
    return authentication.of_message(true, 3, bytes_of(text));
  };
  const Mac first = mac();
  const auto each = [&](auto& bytes, const char* what) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] ^= 1;
      EXPECT_FALSE(are_equal(first, mac())) << what << ' ' << i;
      bytes[i] ^= 1;
    }
  };
  each(key, "key");
  each(asking, "asking");
  each(answering, "answering");
  each(text, "words");
  EXPECT_TRUE(are_equal(first, mac()));
  // Words that move from one part to the next are others.
  const PeerAuthentication one(key, "lab"), other(key, "labn");
  EXPECT_FALSE(are_equal(one.asks(bytes_of("x")), other.asks(bytes_of("x"))));
  EXPECT_FALSE(are_equal(one.of_message(true, 1, bytes_of("1x")), one.of_message(true, 11, bytes_of("x"))));
}

TEST(NetdevPeerAuthentication, AreEqual_MacsThatDifferInAnyBit_AreNot) {
  const Mac mac = *new_key();
  EXPECT_TRUE(are_equal(mac, mac));
  for (size_t bit = 0; bit < 8 * mac.size(); ++bit) {
    Mac other = mac;
    other[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_FALSE(are_equal(mac, other)) << bit;
    EXPECT_FALSE(are_equal(other, mac)) << bit;
  }
}

TEST(NetdevPeerAuthentication, KeyFromText_EachDigit_IsHexadecimal) {
  std::string text;
  Key key;
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<uint8_t>(i * 37 + 1);
    char digits[3];
    std::snprintf(digits, sizeof digits, i % 2 == 0 ? "%02x" : "%02X", key[i]);
    text += digits;
  }
  ASSERT_TRUE(key_from_text(text));
  EXPECT_EQ(key, *key_from_text(text));
  for (size_t i = 0; i < text.size(); ++i)
    for (const char wrong : {'g', 'G', '/', ':', '@', '`', ' ', '\0', '\xff'}) {
      std::string other = text;
      other[i] = wrong;
      const auto read = key_from_text(other);
      EXPECT_FALSE(read) << i << wrong;
      EXPECT_EQ(EINVAL, read ? 0 : read.error().code());
    }
  for (const std::string& other :
       {text + "0", text + "00", text.substr(2), "0x" + text.substr(2), text + " 0", " " + text.substr(1)})
    EXPECT_FALSE(key_from_text(other)) << other;
}

}  // namespace
}  // namespace nupa::netdev
