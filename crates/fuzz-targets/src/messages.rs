//! Target for the generated messages.

use prost::Message;
use throng_wire::{channeldpb, replaypb, unrealpb};

/// One generated message; the first byte chooses which.
///
/// Asserts that what was decoded encodes to bytes that decode and encode to the same bytes.
pub fn message(input: &[u8]) {
    let [choice, bytes @ ..] = input else { return };
    DECODERS[usize::from(*choice) % DECODERS.len()](bytes);
}

fn decode<M: Message + Default>(bytes: &[u8]) {
    let Ok(message) = M::decode(bytes) else { return };
    let encoded = message.encode_to_vec();
    assert_eq!(encoded.len(), message.encoded_len());
    // Compared as bytes: a message that holds NaN is not equal to itself.
    let again = M::decode(encoded.as_slice()).expect("an encoded message decodes");
    assert_eq!(again.encode_to_vec(), encoded);
}

macro_rules! decoders {
    ($($message:path,)+) => { &[$(decode::<$message>),+] };
}

/// Every message of the protocol. Their number fits in a byte.
const DECODERS: &[fn(&[u8])] = decoders![
    channeldpb::Packet,
    channeldpb::MessagePack,
    channeldpb::ServerForwardMessage,
    channeldpb::AuthMessage,
    channeldpb::AuthResultMessage,
    channeldpb::ChannelSubscriptionOptions,
    channeldpb::ChannelDataMergeOptions,
    channeldpb::CreateChannelMessage,
    channeldpb::CreateChannelResultMessage,
    channeldpb::RemoveChannelMessage,
    channeldpb::ListChannelMessage,
    channeldpb::ListChannelResultMessage,
    channeldpb::list_channel_result_message::ChannelInfo,
    channeldpb::SubscribedToChannelMessage,
    channeldpb::SubscribedToChannelResultMessage,
    channeldpb::UnsubscribedFromChannelMessage,
    channeldpb::UnsubscribedFromChannelResultMessage,
    channeldpb::ChannelDataUpdateMessage,
    channeldpb::DisconnectMessage,
    channeldpb::ChannelDataRecoveryMessage,
    channeldpb::EndRecoveryMesssage,
    channeldpb::ChannelOwnerLostMessage,
    channeldpb::ChannelOwnerRecoveredMessage,
    channeldpb::SpatialInfo,
    channeldpb::CreateSpatialChannelsResultMessage,
    channeldpb::QuerySpatialChannelMessage,
    channeldpb::QuerySpatialChannelResultMessage,
    channeldpb::SpatialChannelsReadyMessage,
    channeldpb::ChannelDataHandoverMessage,
    channeldpb::SpatialRegion,
    channeldpb::SpatialRegionsUpdateMessage,
    channeldpb::SpatialInterestQuery,
    channeldpb::spatial_interest_query::SpotsAoi,
    channeldpb::spatial_interest_query::BoxAoi,
    channeldpb::spatial_interest_query::SphereAoi,
    channeldpb::spatial_interest_query::ConeAoi,
    channeldpb::UpdateSpatialInterestMessage,
    channeldpb::CreateEntityChannelMessage,
    channeldpb::AddEntityGroupMessage,
    channeldpb::RemoveEntityGroupMessage,
    channeldpb::DebugGetSpatialRegionsMessage,
    channeldpb::Vector3f,
    channeldpb::Vector4f,
    channeldpb::TransformState,
    unrealpb::FVector,
    unrealpb::UnrealObjectRef,
    unrealpb::unreal_object_ref::GuidCachedObject,
    unrealpb::ActorComponentRef,
    unrealpb::AssetRef,
    unrealpb::RemoteFunctionMessage,
    unrealpb::SpawnObjectMessage,
    unrealpb::DestroyObjectMessage,
    unrealpb::HandoverContext,
    unrealpb::HandoverData,
    unrealpb::GetUnrealObjectRefMessage,
    unrealpb::GetUnrealObjectRefResultMessage,
    unrealpb::SyncNetIdMessage,
    unrealpb::sync_net_id_message::NetIdPath,
    unrealpb::SpatialEntityState,
    unrealpb::SpatialChannelData,
    unrealpb::ChannelRecoveryData,
    unrealpb::FRepMovement,
    unrealpb::FRepAttachment,
    unrealpb::ActorState,
    unrealpb::ActorComponentState,
    unrealpb::ActorComponentStates,
    unrealpb::SceneComponentState,
    unrealpb::StaticMeshComponentState,
    unrealpb::FBasedMovementInfo,
    unrealpb::FRootMotionSource,
    unrealpb::f_root_motion_source::FRootMotionFinishVelocitySettings,
    unrealpb::FRootMotionSourceGroup,
    unrealpb::FRepRootMotionMontage,
    unrealpb::CharacterState,
    unrealpb::CharacterServerMovePackedParams,
    unrealpb::CharacterClientMoveResponsePackedParams,
    unrealpb::PlayerState,
    unrealpb::ControllerState,
    unrealpb::ControllerClientSetLocationParams,
    unrealpb::ControllerClientSetRotationParams,
    unrealpb::PlayerControllerState,
    unrealpb::PlayerControllerServerUpdateCameraParams,
    unrealpb::PlayerControllerClientSetHudParams,
    unrealpb::PlayerControllerClientSetViewTargetParams,
    unrealpb::PlayerControllerClientEnableNetworkVoiceParams,
    unrealpb::PlayerControllerClientCapBandwidthParams,
    unrealpb::PlayerControllerClientRestartParams,
    unrealpb::PlayerControllerClientRetryClientRestartParams,
    unrealpb::PlayerControllerServerAcknowledgePossessionParams,
    unrealpb::PlayerControllerClientSetCameraModeParams,
    unrealpb::PlayerControllerServerSetSpectatorLocationParams,
    unrealpb::PlayerControllerClientGotoStateParams,
    unrealpb::PlayerControllerClientReceiveLocalizedMessageParams,
    unrealpb::GameStateBase,
    unrealpb::PawnState,
    unrealpb::FClientAdjustment,
    replaypb::ReplaySession,
    replaypb::ReplayPacket,
];

const _: () = assert!(DECODERS.len() <= 256);
