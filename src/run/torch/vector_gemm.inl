// SPDX-License-Identifier: Apache-2.0
// The matrix product. Panels of kColumns columns of b are packed (kDepth words of each, dense), so that the inner loop streams one panel
// while a block of rows of a stays in the second-level cache; a tile of c is kept in registers. Where b has dense rows, the first tile of a
// panel packs it as it multiplies, since its multiplications leave time for the stores. Weights and their gradients are too large for the
// caches, so a tile asks for the sums that it adds to as it begins and adds them as it ends, and asks for its share of the next panel's b.

constexpr int kMaxVectors = kLanes == 16 ? 4 : 2;  // of a tile's width
constexpr int kColumns = kMaxVectors * kLanes;
constexpr std::int64_t kBlockRows = 384;  // rows of a that are packed together
constexpr std::int64_t kSumRows = 512;    // rows of which sums are kept until they can be rounded

// A lane's part of a row of a and of a column of b in one multiplication: a number, or two of bf16 that follow on each other along k.
#if defined(__AVX512BF16__)
template <class T>
constexpr std::int64_t kPerWord = sizeof(float) / sizeof(T);
using Halves32 = std::uint16_t __attribute__((vector_size(kLanes * 4)));
inline __m512bh pairs(Vec v) {
  return bits_as<__m512bh>(v);
}
inline Vec multiply_add(const Bf16*, Vec sum, Vec x, Vec y) {
  return _mm512_dpbf16_ps(sum, pairs(x), pairs(y));
}
inline Vec broadcast_word(const Bf16* p) {
  int word;
  __builtin_memcpy(&word, p, sizeof word);
  return bits_as<Vec>(_mm512_set1_epi32(word));
}
inline Vec broadcast_last(const Bf16* p) {
  return bits_as<Vec>(_mm512_set1_epi32(p->bits));
}
inline Vec load_words(const Bf16* p) {
  return load(reinterpret_cast<const float*>(p));
}
inline Vec load_words_part(const Bf16* p, std::int64_t n) {
  return bits_as<Vec>(_mm512_maskz_loadu_epi16((1u << n) - 1u, p));
}
// Two vectors of words: each of the columns' pair.
inline void read_pairs(Vec* words, const Bf16* first, const Bf16* second) {
  Halves32 low, high;
  for (int i = 0; i < 2 * kLanes; ++i) low[i] = static_cast<std::uint16_t>(i / 2 + i % 2 * 2 * kLanes), high[i] = low[i] + kLanes;
  const __m512i a = bits_as<__m512i>(load_words(first)), b = bits_as<__m512i>(load_words(second));
  words[0] = bits_as<Vec>(_mm512_permutex2var_epi16(a, bits_as<__m512i>(low), b));
  words[1] = bits_as<Vec>(_mm512_permutex2var_epi16(a, bits_as<__m512i>(high), b));
}
// Lanes of `first` as the first of each pair, of `second` as the second.
inline Vec paired(Vec first, Vec second) {
  return bits_as<Vec>(bits_as<Bits>(first) >> 16 | bits_as<Bits>(second));
}
#else
template <class T>
constexpr std::int64_t kPerWord = 1;
inline Vec multiply_add(const Bf16*, Vec sum, Vec x, Vec y) {
  return sum + x * y;
}
inline Vec broadcast_word(const Bf16* p) {
  return broadcast(number(*p));
}
inline Vec broadcast_last(const Bf16* p) {
  return broadcast_word(p);
}
inline Vec load_words(const Bf16* p) {
  return load(p);
}
inline Vec load_words_part(const Bf16* p, std::int64_t n) {
  return load_part(p, n);
}
inline Vec paired(Vec, Vec second) {
  return second;
}
#endif
inline Vec multiply_add(const float*, Vec sum, Vec x, Vec y) {
  return sum + x * y;
}
inline Vec broadcast_word(const float* p) {
  return broadcast(*p);
}
inline Vec broadcast_last(const float* p) {
  return broadcast(*p);
}
inline Vec load_words(const float* p) {
  return load(p);
}
inline Vec load_words_part(const float* p, std::int64_t n) {
  return load_part(p, n);
}
// Words of a packed panel. They are more of pairs, whose sums are costlier to keep between panels.
template <class T>
constexpr std::int64_t kDepth = kPerWord<T> > 1 ? 512 : 256;

// Rows of a tile of this many vectors: enough independent sums to hide the latency, few enough for the registers.
constexpr int tile_rows(int vectors) {
  if (kLanes == 16) return vectors == 4 ? 6 : vectors == 3 ? 8 : 12;
  return vectors == 2 ? 6 : 12;
}

enum class Start { zero, add, bias };

// The part of b that a panel holds: [depth, columns]. There is none where one of them is not positive.
template <class T>
struct PanelSource {
  MatrixView<T> b;
  std::int64_t depth, columns;
};

template <class T>
struct TileArguments {
  PanelSource<T> source, next;  // `next`: of the panel behind this one
  MatrixView<T> a;
  float* panel;  // words of b, kColumns in a row
  float* c;      // sums to add to, and to store unless they are rounded
  std::int64_t ldc;
  const T* bias;
  Start start;
  std::int64_t last;  // elements of the last vector
  T* rounded;         // where to store the sums in T; may be null
  std::int64_t ld_rounded;
};

// The numbers of b's row at `from`, with those of the row behind it where they are pairs, as words of a panel.
template <int Vectors, class T>
void read_row(Vec (&words)[Vectors], const T* from, [[maybe_unused]] std::int64_t behind) {
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; v += kPerWord<T>) {
    if constexpr (kPerWord<T> == 2)
      read_pairs(words + v, from + v * kLanes, from + behind + v * kLanes);
    else
      words[v] = load(from + v * kLanes);
  }
}

// Where `Packs`, the panel is yet to be written: the source has dense rows, and whole words.
template <int Rows, int Vectors, bool Packs = false, class T>
void tile(const TileArguments<T>& t) {
  Vec sum[Rows][Vectors];
  const auto column = [&](const auto* p, int v) {
    return v + 1 < Vectors || t.last == kLanes ? load(p + v * kLanes) : load_part(p + v * kLanes, t.last);
  };
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[r][v] = Vec{};
  if (t.start == Start::bias)
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[r][v] = column(t.bias, v);
  if (t.start == Start::add)
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) __builtin_prefetch(t.c + r * t.ldc + v * kLanes, 1);
  const T *a = t.a.data, *unpacked = t.source.b.data;
  float* b = t.panel;
  const auto step = [&](auto word) {
    Vec row[Vectors];
    if constexpr (Packs) {
      read_row(row, unpacked, t.source.b.row);
      unpacked += kPerWord<T> * t.source.b.row;
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) store(b + v * kLanes, row[v]);
    } else {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) row[v] = load(b + v * kLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Vec x = word(a + r * t.a.row);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[r][v] = multiply_add(a, sum[r][v], x, row[v]);
    }
  };
  std::int64_t p = kPerWord<T>;
  for (; p <= t.source.depth; p += kPerWord<T>, a += t.a.column * kPerWord<T>, b += kColumns)
    step([](const T* x) { return broadcast_word(x); });
  if (p - kPerWord<T> < t.source.depth) step([](const T* x) { return broadcast_last(x); });
  const auto write = [&](auto* to, int v, Vec value) {
    if (v + 1 < Vectors || t.last == kLanes)
      store(to + v * kLanes, value);
    else
      store_part(to + v * kLanes, value, t.last);
  };
  if (t.start == Start::add)
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[r][v] += column(t.c + r * t.ldc, v);
  const auto write_all = [&](auto* to, std::int64_t stride) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) write(to + r * stride, v, sum[r][v]);
  };
  t.rounded ? write_all(t.rounded, t.ld_rounded) : write_all(t.c, t.ldc);
}

// Tiles of `rows` <= Rows rows: for the last rows of a matrix.
template <int Rows, int Vectors, class T>
void tile_of(int rows, const TileArguments<T>& t) {
  if (rows == Rows) return tile<Rows, Vectors>(t);
  if constexpr (Rows > 1) tile_of<Rows - 1, Vectors>(rows, t);
}

// Asks the caches for parts [begin, end) of `parts` of what a panel will be packed of. A call would be dropped: gcc takes a function that
// does nothing else for one without effects.
template <class T>
[[gnu::always_inline]] inline void prefetch(const PanelSource<T>& x, std::int64_t begin, std::int64_t end, std::int64_t parts) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  const bool by_rows = x.b.column == 1;
  const std::int64_t lines = by_rows ? x.depth : x.columns, length = by_rows ? x.columns : x.depth;
  for (std::int64_t i = lines * begin / parts; i < lines * end / parts; ++i)
    for (std::int64_t e = 0; e < length; e += kLine) __builtin_prefetch(x.b.data + i * (by_rows ? x.b.row : x.b.column) + e);
}

template <int Vectors, class T>
void rows_of_tiles(std::int64_t m, TileArguments<T>& t, bool packs) {
  constexpr int kRows = tile_rows(Vectors);
  const std::int64_t all = m;
  for (; m >= kRows; m -= kRows) {
    if (t.next.depth > 0) prefetch(t.next, all - m, all - m + kRows, all);
    if (Vectors == kMaxVectors && packs && m == all)
      tile<kRows, Vectors, Vectors == kMaxVectors>(t);
    else
      tile<kRows, Vectors>(t);
    t.a.data += kRows * t.a.row;
    if (t.c) t.c += kRows * t.ldc;
    if (t.rounded) t.rounded += kRows * t.ld_rounded;
  }
  if (m > 0) tile_of<kRows, Vectors>(static_cast<int>(m), t);
}

// block[i][j] <-> block[j][i], doubling the size of the swapped parts.
inline void transpose_block(Vec (&block)[kLanes]) {
  Mask lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
#pragma GCC unroll 4
  for (int half = 1; half < kLanes; half *= 2) {
    const Mask upper = (lane & half) != 0;
    const Mask low = upper ? lane - half + kLanes : lane;   // even row: its own low parts, then the odd row's
    const Mask high = upper ? lane + kLanes : lane + half;  // odd row: the even row's high parts, then its own
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & half) continue;
      const Vec even = block[i], odd = block[i + half];
      block[i] = __builtin_shuffle(even, odd, low);
      block[i + half] = __builtin_shuffle(even, odd, high);
    }
  }
}

// Packs b's rows [0, depth) and `columns` as words, `stride` of them in a row; columns up to the next whole vector are zero.
template <class T>
void pack_panel(MatrixView<T> b, std::int64_t depth, std::int64_t columns, float* panel, std::int64_t stride) {
  constexpr std::int64_t kTwo = kPerWord<T>;
  if (b.column == 1) {
    const std::int64_t whole = columns / kLanes * kLanes, rest = columns - whole;
    for (std::int64_t p = 0; p < depth; p += kTwo, b.data += kTwo * b.row, panel += stride) {
      const auto words = [&](auto read) {
        const Vec first = read(b.data);
        return kTwo == 1 ? first : paired(first, p + 1 < depth ? read(b.data + b.row) : Vec{});
      };
      std::int64_t j = 0;
      if constexpr (kTwo == 2)
        for (; p + 1 < depth && j + kTwo * kLanes <= whole; j += kTwo * kLanes) {
          Vec pair[kTwo];
          read_row(pair, b.data + j, b.row);
          for (int v = 0; v < kTwo; ++v) store(panel + j + v * kLanes, pair[v]);
        }
      for (; j < whole; j += kLanes) store(panel + j, words([&](const T* row) { return load(row + j); }));
      if (rest) store(panel + whole, words([&](const T* row) { return load_part(row + whole, rest); }));
    }
    return;
  }
  for (std::int64_t j = 0; j < columns; j += kLanes)
    for (std::int64_t p = 0; p < depth; p += kTwo * kLanes) {
      const std::int64_t rows = depth - p < kTwo * kLanes ? depth - p : kTwo * kLanes;
      const std::int64_t width = columns - j < kLanes ? columns - j : kLanes;
      Vec block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const T* from = b.data + (j + i) * b.column + p;
        block[i] = i >= width ? Vec{} : rows == kTwo * kLanes ? load_words(from) : load_words_part(from, rows);
      }
      transpose_block(block);
      for (std::int64_t i = 0; i * kTwo < rows; ++i) store(panel + (p / kTwo + i) * stride + j, block[i]);
    }
}

// Rows of a as tiles read them: where two numbers are one word, these have to follow on each other. Packed are up to `most` rows.
template <class T>
MatrixView<T> readable(MatrixView<T> a, std::int64_t rows, std::int64_t depth, float* packed, std::int64_t most = kBlockRows) {
  if (a.column == 1 || kPerWord<T> == 1) return a;
  pack_panel<T>({a.data, a.column, 1}, depth, rows, packed, most);
  return {reinterpret_cast<const T*>(packed), kPerWord<T>, most};
}

// All rows of a, with the packed columns of b, at most kColumns; or packed by the first tile where it `packs`.
template <class T>
void rows_of_panel(std::int64_t m, TileArguments<T>& t, bool packs) {
  const std::int64_t vectors = (t.source.columns + kLanes - 1) / kLanes;
  t.last = t.source.columns - (vectors - 1) * kLanes;
  if (vectors == 1) rows_of_tiles<1>(m, t, packs);
  if (vectors == 2) rows_of_tiles<2>(m, t, packs);
  if constexpr (kMaxVectors == 4) {
    if (vectors == 3) rows_of_tiles<3>(m, t, packs);
    if (vectors == 4) rows_of_tiles<4>(m, t, packs);
  }
}

// All rows of a, with the source's columns.
template <class T>
void rows_of_columns(std::int64_t m, TileArguments<T> t) {
  const auto& [b, depth, columns] = t.source;
  const bool packs = b.column == 1 && columns == kColumns && depth % kPerWord<T> == 0 && m >= tile_rows(kMaxVectors);
  if (!packs) pack_panel(b, depth, columns, t.panel, kColumns);
  rows_of_panel(m, t, packs);
}

inline std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
inline std::int64_t most(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}
template <class T>
inline MatrixView<T> from(MatrixView<T> x, std::int64_t i, std::int64_t j) {
  return {x.data + i * x.row + j * x.column, x.row, x.column};
}

template <class T>
PanelSource<T> source_at(MatrixView<T> b, std::int64_t n, std::int64_t k, std::int64_t p, std::int64_t j) {
  return {from(b, p, j), least(k - p, kDepth<T> * kPerWord<T>), least(n - j, kColumns)};
}

template <class T>
void gemm_with_bias(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView<T> a, MatrixView<T> b, float* c, std::int64_t ldc,
                    const T* bias, bool accumulate) {
  constexpr bool kPacks = kPerWord<T> > 1;
  alignas(64) float panel[kDepth<T> * kColumns], packed[kPacks ? kDepth<T> * kBlockRows : 1];
  const std::int64_t most = kDepth<T> * kPerWord<T>, block = kPacks && a.column != 1 ? kBlockRows : m;
  for (std::int64_t p = 0; p == 0 || p < k; p += most) {
    const std::int64_t depth = least(k - p, most);
    const Start start = p > 0 || accumulate ? Start::add : bias ? Start::bias : Start::zero;
    for (std::int64_t i = 0; i < m; i += block) {
      const std::int64_t rows = least(m - i, block);
      const MatrixView<T> words = readable(from(a, i, p), rows, depth, packed);
      for (std::int64_t j = 0; j < n; j += kColumns) {
        const std::int64_t next = j + kColumns;
        rows_of_columns<T>(rows, {source_at(b, n, k, p, j), next < n ? source_at(b, n, k, p, next) : source_at(b, n, k, p + most, 0), words,
                                  panel, c + i * ldc + j, ldc, bias ? bias + j : nullptr, start, 0, nullptr, 0});
      }
    }
  }
}
template <class T>
void gemm_f32(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView<T> a, MatrixView<T> b, float* c, std::int64_t ldc,
              bool accumulate) {
  gemm_with_bias<T>(m, n, k, a, b, c, ldc, nullptr, accumulate);
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, StridedMatrix a, StridedMatrix b, float* c, std::int64_t ldc, const float* bias) {
  gemm_with_bias(m, n, k, a, b, c, ldc, bias, false);
}
// Where one panel is not as deep as the product, sums are kept in f32 until the last one.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView<Bf16> a, MatrixView<Bf16> b, Bf16* c, std::int64_t ldc,
          const Bf16* bias) {
  alignas(64) float panel[kDepth<Bf16> * kColumns], packed[kPerWord<Bf16> > 1 ? kDepth<Bf16> * kBlockRows : 1], sums[kSumRows * kColumns];
  const std::int64_t most = kDepth<Bf16> * kPerWord<Bf16>, block = a.column != 1 ? kBlockRows : k > most ? kSumRows : m;
  for (std::int64_t i = 0; i < m; i += block)
    for (std::int64_t j = 0; j < n; j += kColumns)
      for (std::int64_t p = 0; p == 0 || p < k; p += most) {
        const std::int64_t rows = least(m - i, block), depth = least(k - p, most), next = p + most;
        const Start start = p > 0 ? Start::add : bias ? Start::bias : Start::zero;
        Bf16* const to = next >= k ? c + i * ldc + j : nullptr;
        rows_of_columns<Bf16>(rows, {source_at(b, n, k, p, j), next < k ? source_at(b, n, k, next, j) : source_at(b, n, k, 0, j + kColumns),
                                     readable(from(a, i, p), rows, depth, packed), panel, k > most ? sums : nullptr, kColumns,
                                     bias ? bias + j : nullptr, start, 0, to, ldc});
      }
}
