//! Vectors of the IETF with every library, on whole ESP packets from SPI to ICV.

mod agreement;

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.chars().filter(|c| !c.is_whitespace()).collect();
    Secret::from_hex(&digits).expect("hexadecimal").bytes().to_vec()
}

/// Encrypts and decrypts an AEAD vector as an ESP packet, byte by byte.
fn check_aead(suite: Suite, key: &str, nonce: &str, aad: &str, plain: &str, sealed: &str) {
    let vector = [key, nonce, aad, plain, sealed].map(bytes);
    for library in Library::all(suite) {
        check_aead_with(suite, library, &vector);
    }
}

fn check_aead_with(suite: Suite, library: Library, [key, nonce, aad, plain, sealed]: &[Vec<u8>; 5]) {
    let key = Secret::new(&[&key[..], &nonce[..4]].concat());
    let cipher = Cipher::new(suite, &key, &Secret::none(), Choice::one(library));
    let (spi, numbers) = aad.split_at(4);
    let high = (numbers.len() == 8).then(|| u32::from_be_bytes(*numbers.first_chunk().unwrap()));
    let low = &numbers[numbers.len() - 4..];
    let expected = [spi, low, &nonce[4..], sealed].concat();
    let mut packet = [spi, low, &[0; 8], plain, &[0; 16]].concat();
    cipher.seal(&mut packet, u64::from_be_bytes(*nonce.last_chunk().unwrap()), high);
    assert_eq!(packet, expected, "{suite} {library}");
    for at in [0, 4, 8, 16, packet.len() - 1] {
        let mut damaged = packet.clone();
        damaged[at] ^= 1;
        assert_eq!(cipher.open(&mut damaged, high), Err(Failure::Integrity), "{suite} byte {at}");
    }
    let other_half = Some(high.map_or(0, |high| high ^ 1));
    assert_eq!(cipher.open(&mut packet.clone(), other_half), Err(Failure::Integrity), "{suite}");
    assert_eq!(cipher.open(&mut packet, high), Ok(()));
    assert_eq!(packet[16..packet.len() - 16], plain[..]);
}

/// draft-mcgrew-gcm-test-01, section 4: all cases with keys of 128 and 256 bits. Key, salt and IV, SPI and sequence
/// number, payload with padding, encrypted payload with ICV.
const GCM: [[&str; 5]; 12] = [
    [
        "4c80cdefbb5d10da906ac73c3613a634",
        "2e443b684956ed7e3b244cfe",
        "000043218765432100000000",
        "45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f7564700373\
         69700963796265726369747902646b000021000101020201",
        "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d\
         15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732459018148f6cbe722fd04796562dfdb4",
    ],
    [
        "feffe9928665731c6d6a8f9467308308",
        "cafebabefacedbaddecaf888",
        "0000a5f80000000a",
        "4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d0010000010000000000000373697009637962\
         65726369747902646b00000100010001",
        "deb22cd9b07c72c16e3a65beeb8df304a5a5897d33ae530f1ba76d5d114d2a5c3de81827c10e9a4f51330d0eec416642\
         cfbb85a5b47e48a4ec3b9ba95d918bd183b70d3aa8bc6ee4c309e9d85a41ad4a",
    ],
    [
        "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        "112233440102030405060708",
        "4a2cbfe300000002",
        "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee0000000007002400020bf0000020405b401010402\
         01020201",
        "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763748a637985771d347f0545659f14e99d\
         ef842d8eb335f4eecfdbf831824b4c4915956c96",
    ],
    [
        "00000000000000000000000000000000",
        "000000000000000000000000",
        "0000000000000001",
        "4500003c99c500008001cb7a40679318010101010800075c020044006162636465666768696a6b6c6d6e6f7071727374\
         75767761626364656667686901020201",
        "4688daf2f973a392732909c331d56d60f694abaa414b5e7ff5fdcdfff5e9a284456476492719ffb64de7d9dca1e1d894\
         bc3bd57873ed4d181d19d4d5c8c18af3f821d496eeb096e98ad2b69e4799c71d",
    ],
    [
        "3de09874b388e6491988d0c3607eae1f",
        "57690e434e280000a2fca1a3",
        "42f67e3f1010101010101010",
        "4500003c99c300008001cb7c40679318010101010800085c020043006162636465666768696a6b6c6d6e6f7071727374\
         75767761626364656667686901020201",
        "fba2caa4853cf9f0f22cb10d86dd83b0fec75691cf1a04b00d1138ec9c35791765acbd8701ad79845bf9fe3fba487bc9\
         1755e6662b4c8d0d1f5e22739530320ae0d731cc978ecafaeae88f00e80d6e48",
    ],
    [
        "3de09874b388e6491988d0c3607eae1f",
        "57690e434e280000a2fca1a3",
        "42f67e3f1010101010101010",
        "4500001c42a200008001441f406793b6e00000020a00f5ff01020201",
        "fba2ca845e5df9f0f22c3e6e86dd831e1fc65792cd1af9130e1379ed369f071f35e034be95f112e4e7d05d35",
    ],
    [
        "abbccddef00112233445566778899aab",
        "decaf888cafedebaceface74",
        "000001000000000000000001",
        "4500004933ba00007f119106c3fb1d10c2b1d326c02831ce0035dd7b800302d500004e20001e8c18d75b81dc91baa047\
         6b91b924b280389d92c963bac046ec959b6266c04722b14923010101",
        "18a6fd42f72cbf4ab2a2ea901f73d814e3e7f243d95412e1c349c1d2fbec168f9190feebaf2cb01984e65863965d7472\
         b79da345e0e780191f0d2f0e0f496c226f2127b27db35724e7845d68651f57e65f354f75ff17015769623436",
    ],
    [
        "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        "73616c74616e640169766563",
        "17405e67156f3126dd0db99b",
        "45080028732c00004006e9f90a0106120a01038f06b88023dd6bafbecb71260250101f646d540001",
        "f2d69ecdbd5a0d5b8d5ef38bad4da58d1f278fde98ef67549d524a3018d9a57ff4d3a31ce673119e451626c2415771e3\
         b7eebca614c89b35",
    ],
    [
        "3de09874b388e6491988d0c3607eae1f",
        "57690e434e280000a2fca1a3",
        "42f67e3f1010101010101010",
        "45000049333e00007f119182c3fb1d10c2b1d326c02831ce0035cb458003025b000001e0001e8c18d65759d52284a035\
         2c71475c8880391c764d6e5ee0496b325ae270c03899493915010101",
        "fba2cad12fc1f9f00d3cebf305410db83d7784b607323d220f24b0a97d54182800cadb0f68d99ef0e0c0c89ae9bea888\
         4e52d65bc1afd0740f742444747b5b39ab533163aad4550ee5160975cdb608c5769189609763b8e18caa81e2",
    ],
    [
        "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        "73616c74616e640169766563",
        "17405e67156f3126dd0db99b",
        "636973636f0172756c657301746865016e6574776501646566696e6501746865746563686e6f6c6f6769657301746861\
         7477696c6c01646566696e65746f6d6f72726f7701020201",
        "d4b7ed86a1777f2ea13d6973d324c69e7b43f826fb56831226508bebd2dceb18d0a6df10e5487df074113e14c641024e\
         3e6773d91a62ee429b043a10e3efe6b012a49363412364f8c0cac587f249e56b11e24f30e44ccc76",
    ],
    [
        "7d773d00c144c525ac619d18c84a3f47",
        "d966426743457e9182443bc6",
        "335467aeffffffff",
        "01020201",
        "437f866bcb3f699fe9b0822bac961c4504bef270",
    ],
    [
        "6c6567616c697a656d6172696a75616e61616e64646f69746265666f72656961",
        "7475726e333021696765746d",
        "796b6963ffffffffffffffff",
        "45000030da3a00008001df3bc0a80005c0a800010800c6cd020007006162636465666768696a6b6c6d6e6f7071727374\
         01020201",
        "f97ab2aa356d8edce17644ac8c78e25dd24dedbb29ebf1b64a274b39b49c3a864cd3d78ca4ae68a32b42458fb57dbe82\
         1dcc63b9d0937ba2945f669368661a329fb4c053",
    ],
];

#[test]
fn gcm_vectors_of_draft_mcgrew() {
    for [key, nonce, aad, plain, sealed] in GCM {
        let suite = if key.len() == 32 { Suite::Aes128Gcm } else { Suite::Aes256Gcm };
        check_aead(suite, key, nonce, aad, plain, sealed);
    }
}

#[test]
fn chacha20_poly1305_vector_of_rfc_7634() {
    check_aead(
        Suite::ChaCha20Poly1305,
        "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        "a0a1a2a31011121314151617",
        "0102030400000005",
        "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec100007362708090a0b0c0d0e0f10111213\
         1415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363701020204",
        "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c614ee8099d52844eb61aa95dfab4c02f7\
         2aa71e7c4c4f64c9befe2facc638e8f3cbec163fac469b502773f6fb94e664da9165b82829f641e0\
         76aaa8266b7fb0f7b11b369907e1ad43",
    );
}

/// RFC 3602, cases 5 and 6: transport mode, without integrity, so only what is in front of the ICV is compared.
#[test]
fn cbc_vectors_of_rfc_3602() {
    let case_5 = [
        "e96e8c08ab465763fd098d45dd3ff893",
        "0000432100000001",
        "08000ebda70a00008e9c083db95b070008090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021222324252627\
         28292a2b2c2d2e2f30313233343536370102030405060708090a0b0c0d0e0e01",
        "f663c25d325c18c6a9453e194e120849a4870b66cc6b9965330013b4898dc856a4699e523a55db080b59ec3a8e4b7e52\
         775b07d1db34ed9c538ab50c551b874aa269add047ad2d5913ac19b7cfbad4a6",
    ];
    let case_6 = [
        "69d08df7d203329db093fc4924e5bd80",
        "0000432100000008",
        "0800b5e8a80a0500a69c083d0b660e0077777777777777777777777701020201",
        "f51995881ec4e0c4488987ce742e8109689bb379d2d750c0d915dca346a89f75",
    ];
    let key = bytes("90d382b410eeba7ad938c46cec1a82bf");
    for [iv, header, plain, sealed] in [case_5, case_6].map(|case| case.map(bytes)) {
        let cbc = Cbc::<hmac::Hmac<Sha256>>::new(&key, &[7; 32], 16);
        let mut packet = [&header[..], &[0; 16], &plain, &[0; 16]].concat();
        cbc.seal(&mut packet, (*iv.first_chunk::<16>().unwrap()).into(), None);
        assert_eq!(packet[..packet.len() - 16], [&header[..], &iv, &sealed].concat());
        assert_eq!(cbc.open(&mut packet, None), Ok(()));
        assert_eq!(packet[24..packet.len() - 16], plain);
    }
}

/// RFC 4231, case 1 (SHA-256), and RFC 2202, case 1 (SHA-1), truncated: the ICV of CBC suites is HMAC of these bytes.
#[test]
fn icv_is_the_truncated_hmac() {
    use ::hmac::{Hmac, KeyInit, Mac};
    let sha256 = Hmac::<Sha256>::new_from_slice(&[0x0b; 20]).unwrap().chain_update(b"Hi There").finalize();
    assert_eq!(sha256.as_bytes()[..16], bytes("b0344c61d8db38535ca8afceaf0bf12b"));
    let sha1 = Hmac::<Sha1>::new_from_slice(&[0x0b; 20]).unwrap().chain_update(b"Hi There").finalize();
    assert_eq!(sha1.as_bytes()[..12], bytes("b617318655057264e28bc0b6"));
    for suite in [Suite::Aes128Sha256, Suite::Aes256Sha1] {
        let [encryption, integrity] =
            [suite.encryption_key_len(), suite.integrity_key_len()].map(|length| vec![9; length]);
        let cipher = Cipher::new(
            suite,
            &Secret::new(&encryption),
            &Secret::new(&integrity),
            Choice::one(Library::all(suite)[0]),
        );
        let icv = suite.icv_len();
        for high in [None, Some(0), Some(5)] {
            let mut packet = vec![3; 8 + 16 + 32 + icv];
            cipher.seal(&mut packet, 77, high);
            let (covered, found) = packet.split_at(packet.len() - icv);
            let all =
                [covered, &high.map(u32::to_be_bytes).unwrap_or_default()[..high.map_or(0, |_| 4)]].concat();
            let expected = if icv == 16 {
                Hmac::<Sha256>::new_from_slice(&integrity).unwrap().chain_update(&all).finalize().as_bytes()
                    [..16]
                    .to_vec()
            } else {
                Hmac::<Sha1>::new_from_slice(&integrity).unwrap().chain_update(&all).finalize().as_bytes()
                    [..12]
                    .to_vec()
            };
            assert_eq!(found, expected, "{suite} {high:?}");
        }
    }
}
